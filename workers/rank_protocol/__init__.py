"""What a worker's main process and its ranks share: frames, start parameters, errors. Pure."""
