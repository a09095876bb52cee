"""The benchmark: step time, memory and compile time of every router against plain residual."""
