"""The experiments, one module each: lab/job.py says what is in it."""
