"""Glossary of the axis letters in variable names and einsums.

An array carries its axes at the end of its name, in order: ``weights_BTMS`` has axes batch, time, consumer, source. Einsum
strings use the same letters. Two letters exist for depth because the layer that reads and the layer that is read are different
axes, just as query and key positions are in attention.

    B  batch: sequences                    D  model width ("dim")
    T  time: position in the sequence      H  query heads; G  key/value heads; Q  query heads per key/value head
    U  time again, as the attended axis    K  width of one attention head
    V  vocabulary                          F  width of the MLP's hidden layer
    M  consumers: who reads (sublayers, then the read-out last)
    S  sources: what is read (the embedding first, then outputs, states or blocks)
    P  (consumer, source) pairs, packed row by row, consumers with one source left out
    R  rank of depth queries and keys
    L  layers (one attention and one MLP sublayer each)
    A  microbatches of gradient accumulation
    N  streams (hyper-connections); in an evaluation, the sequences or tokens it counts
    O  streams again, as what a site leaves behind; E  an axis with no other name, such as logits of a carry
    C  mixes that one consumer makes, one for each way or head
    W  all streams side by side, N x D

Sublayers are numbered 0..2L-1, attention first. Consumer m is the input of sublayer m; consumer 2L is the read-out.
Source 0 is the token embedding; source i is what sublayer i-1 wrote.
"""
