"""Training (Sec. 2.4, 3.2). Import its modules by name: fit.py imports Lightning, which takes seconds."""
