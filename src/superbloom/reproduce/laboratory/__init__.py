"""The paper's claims in made-up worlds, where data never runs out and the best possible recall is known.

`superbloom reproduce --lab --out FOLDER`:
cells.py     which models are trained, in which worlds
bench.py     makes the worlds, asks the oracle, trains and measures one model
probe.py     how well an input's identity can be read off each layer
findings.py  differences between models with intervals over seeds, and the verdicts
pictures.py  curves, phase diagrams and the layer probe
report.py    all of it as Markdown and JSON
run.py       the experiments in order
"""
