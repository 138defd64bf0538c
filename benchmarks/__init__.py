"""How fast tinynorm is, beside others: ``python -m benchmarks --help``.

Reading order: `rows` (what is measured, and what is aimed at), `contestants` (the same work in each library), `setting`
(what it runs on), `measures` (the groups), `network` (other networks, on paper), `worker`, `ranks` and `processes`
(that run them), `report`, `picture`, `arguments`.

Contestants take turns in one process, A B, B A, so that what slows the machine for a while slows all of them; each row
is a median, and what is judged are ratios of one run. Every library of tensors gets a process of its own, with
tinynorm and nothing else. docs/performance.md has the reasons, and the numbers.
"""
