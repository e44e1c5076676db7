"""The spawner, which forks executors and tails, and the executor, which runs requests one at a time."""
