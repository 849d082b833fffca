"""A rank: the process that holds the model shard, the paged cache and the sampler."""
