"""What a run leaves on the disk: folder, history, checkpoints, clients' memories; each file complete or not there."""
