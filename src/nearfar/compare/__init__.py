"""Which loss is best on these data, and whether that can be told.

comparison.py      `compare`: from a data set to a leaderboard, resumable after every training
settings.py        the contestants, and how much is tried
spaces.py          the hyper-parameters that are searched for each loss
workbench.py       what all losses share: rows, folds, features, batches, the initial head
trial.py           one setting trained on one fold
budget.py          how much of all this fits into a time; costs.py: what it costs here; pace.py: whether time is left
search.py          settings of every loss, in proportion to its dimensions; journal.py: results, written at once
retrain.py         the best setting of every loss, over several seeds
query_metrics.py   all runs measured on the test classes, once
statistics.py      intervals and tests; null.py: their false alarms, on one loss against itself
leaderboard.py     the results; files.py, page.py, terminal.py: their files, their report, what is printed

    from nearfar.compare.comparison import compare
    result = compare("photos", losses=["CircleLoss", "ProxyAnchorLoss"], trials=10)
    result.winner, result.rows[0].metrics["map@r"]

Needs the packages of `pip install 'nearfar[compare]'`.
"""
