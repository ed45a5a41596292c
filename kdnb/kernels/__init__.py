"""From `kdnb/cuda_src` to something that can be launched: sources, compilers, a cache on disk."""
