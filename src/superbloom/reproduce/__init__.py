"""The paper's experiments at the scale of one machine: `superbloom reproduce CORPUS --out report/`.

cells.py    which models are trained, for which table, and for how long
lab.py      trains and measures one of them; what is done is kept, what was begun goes on
costs.py    Sec. 2.4 and 2.5: what a step and a query cost
paper.py    what the paper printed, and the queries of its appendix
    results.py  what was measured, and how two models compare
claims.py   what the paper claims, and what ours say to it
    pages.py    the report;  plots.py: its pictures
command.py  all of it, in order
"""
