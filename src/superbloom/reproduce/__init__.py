"""The paper's experiments at the scale of one machine: `superbloom reproduce CORPUS --out report/`.

cells.py      which models are trained, for which table, and for how long
settings.py   how a report is made: its corpus and its time
workbench.py  trains and measures one model; finished results are kept, an interrupted run resumes
costs.py      the time of a step and of a query (Sec. 2.4 and 2.5)
paper.py      the numbers that the paper printed, and the queries of its appendix
results.py    what was measured, and how two models compare
claims.py     what the paper claims, and whether it holds here
tables.py     the tables of the report;  plots.py: its pictures;  report.py: all of it as Markdown and JSON
run.py        the experiments in order
laboratory/   the same claims in made-up worlds, whose best possible recall is known: `reproduce --lab`
"""
