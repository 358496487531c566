"""Training (Sec. 2.4, 3.2). Import the modules by name: fit.py brings Lightning, the others do not."""
