"""`python -m bench gateway`: the processes before the workers, with workers of a set pace."""
