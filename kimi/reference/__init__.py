"""The reference: the model and its drafter as plain jax.numpy, the meaning of everything else."""
