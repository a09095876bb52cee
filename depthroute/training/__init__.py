"""From a model and a corpus to trained parameters: loss, optimizer, step, devices, checkpoints, loop."""
