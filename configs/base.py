"""Every setting and its default. Other config files change this one; nothing has a default anywhere else.

    depthroute train --config configs/base.py --workdir runs/base

trains a 12-layer pre-norm transformer of width 256 on the embedded corpus (the Python standard library's source).
"""

from ml_collections import ConfigDict

from depthroute.errors import bad_value


def get_config(arg: str = "") -> ConfigDict:
    """The base config; it takes no argument."""
    if arg:
        raise bad_value("argument of the config file", arg, "none: this config takes no argument", "--config FILE")
    return ConfigDict(
        {
            "arm": "base",  # row of a results table this run belongs to
            "seed": 0,  # initial values and data order
            "model": {
                "layers": 12,  # attention + MLP pairs: 2 x layers sublayers
                "dim": 256,  # width of the stream
                "heads": 4,  # query heads; a divisor of dim
                "kv_heads": 4,  # key/value heads (grouped-query attention); a divisor of heads
                "mlp": "swiglu",  # swiglu | gelu
                "mlp_dim": 704,  # hidden width of the MLP; 8/3 x dim for swiglu, 4 x dim for gelu
                "vocab": 257,  # token ids 0..vocab-1; the byte tokenizer has 256 bytes and a document separator
                "tied_head": True,  # unembed with the embedding matrix
                "rope_base": 10000.0,  # longest wavelength of the rotary embedding, in tokens, over 2 pi
                "embed_std": 0.02,  # standard deviation of the initial embedding
                "stream_eps": 1e-12,  # of the norms on the stream; small, since a mean over 97 sources is small
                "dtype": "float32",  # float32 | bfloat16 compute; parameters and router scores are float32
                "remat": True,  # recompute sublayers in the backward pass; a buffered history always does
            },
            "router": {
                "preset": "residual",  # a name of `depthroute routers`; setting it sets the axes that define it
                "query": "none",  # none | static | dynamic | input: what it reads itself | mlp: a hidden layer of it
                "key": "none",  # none | static | static_per_consumer | sinusoidal | recurrent | hybrid | dynamic_full |
                # dynamic_raw | dynamic_projected | dynamic_sliced | emitted | centred | stop_gradient (routing/keys.py)
                "bias": "none",  # none | learned: one scalar per (consumer, source) | per_channel: one vector
                "bias_start": "zero",  # zero | one | newest: one for the newest source | mean: one over the number of sources
                "mixing": "free",  # softmax | sigmoid | relu | free
                "sources": "outputs",  # outputs | states
                "source_norm": False,  # sources are normalised when they are written
                "memory": "full",  # full | blocks | window | dilated | ends: which earlier sources a consumer sees
                "blocks": 8,  # number of blocks when memory is blocks
                "window": 8,  # newest sources seen beside the first when memory is window or ends; inputs seen by laurel_pa
                "dilation": 1,  # when memory is dilated: a consumer sees every so many sources, counted back from the newest
                "period": 1,  # when memory is dilated: every so many consumers mix, the others see the newest source alone
                "ways": "one",  # one | kv | qkv | qkvr: separate mixes for attention's key, value, query and for the residual
                "heads": 1,  # groups of channels with weights of their own
                "placement": "replace",  # replace: a site sees the mix | add: the residual stream plus the mix
                "sites": "sublayer",  # sublayer | layer: where the stream is read
                "rank": 32,  # width of queries and keys (full-width keys have width dim); of the low-rank map of laurel_lr
                "query_input": "newest",  # newest | mean | embedding: what a dynamic query is computed from
                "key_gain": False,  # a learned gain per consumer on dynamic_full keys, as AttnRes has
                "key_eps": 1e-6,  # of the norms inside queries and keys, and inside maps of streams
                "key_mean_rate": 0.01,  # share of the newest step in the running mean of centred keys
                "skip_scale": 0.1,  # of the branch, in scaled
                "skip_fraction": 0.5,  # of the channels that take the skip (partial_residual) or pass a stage (stage_bypass)
                "stages": 2,  # of stage_bypass; a divisor of layers
                "value_share": 0.0,  # of the first layer's values in the values of every other one
                "read": "none",  # none | static | dynamic: what a site sees of n streams (hyper-connections)
                "carry": "none",  # none | static | dynamic: how the streams mix from site to site
                "write": "none",  # none | static | dynamic: what each stream takes of a site's output
                "carry_form": "free",  # free | identity | sinkhorn | permutations | kronecker | orthogonal
                "split_width": False,  # streams are fractions of the width, not copies of it (frac-connections)
                "squash": True,  # tanh on the dynamic parts of a free read, carry and write
                "streams": 4,  # number of streams
                "stream_index": "sublayer",  # sublayer | layer: what is counted to find the stream that a site reads at first
                "stream_start": "one_hot",  # one_hot: logits that tell streams apart | random_maps: zero logits, random maps
                "stream_readout": "sum",  # sum | learned: sigmoid weights from all streams
                "sinkhorn_iterations": 20,  # of a sinkhorn carry
                "lr_multiplier": 1.0,  # router learning rate over train.lr
                "lr_trials": 0,  # how many multipliers were tried to find this one
                "lr_tuned": False,  # whether the best of them was inside the range, not at its edge
                "weight_decay": 0.0,  # of router parameters
            },
            "data": {
                "source": "embedded",  # embedded | text | bin
                "files": "",  # glob of text files or of .bin shards; unused by embedded
                "tokenizer": "byte",  # byte, or the path of a tokenizer.json; unused by bin
                "seq_len": 256,  # tokens predicted per sequence
                "batch": 4,  # sequences per step, over all devices and microbatches
            },
            "train": {
                "steps": 2000,
                "optimizer": "adamw",  # adamw | muon (matrices inside the layers; AdamW for the rest)
                "lr": 1e-3,  # peak
                "schedule": "cosine",  # cosine | wsd (warm-up, stable, linear decay)
                "warmup": 100,  # steps of linear warm-up
                "decay": 0,  # steps of the final decay of wsd; cosine decays from the warm-up's end
                "final_lr": 0.1,  # last rate over peak rate
                "beta1": 0.9,
                "beta2": 0.95,
                "adam_eps": 1e-10,  # small: gradients of fan-in scaled router maps are small
                "weight_decay": 0.1,  # of matrices; gains are not decayed, router parameters have their own
                "clip_norm": 1.0,  # global gradient norm
                "z_loss": 0.0,  # weight of the squared log-normaliser
                "accumulate": 1,  # microbatches per step
                "eval_split": "val",  # tune (to choose settings) | val (for tables)
                "eval_every": 500,
                "eval_sequences": 256,  # held-out sequences, spread evenly over the split; at most what it has
                "log_every": 10,  # steps per line of metrics.jsonl
                "checkpoint_every": 500,
                "keep_checkpoints": 2,
            },
            "engine": {
                "history": "buffer",  # buffer: scan over layers, history in one array | list: unrolled, the slow reference
            },
            "parallel": {
                "strategy": "jit",  # jit (sharded over a mesh) | pmap (plain data parallel)
                "data": 1,  # devices that share the batch
                "fsdp": 1,  # devices that share the batch and hold shards of the parameters
            },
        }
    )
