"""The arithmetic of `baton size`: from a model, machines and traffic to pools of workers.

It knows nothing of a running stack. What a worker holds is computed by the code that loads models;
only that part imports torch.
"""
