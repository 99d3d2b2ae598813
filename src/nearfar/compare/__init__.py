"""Comparison of losses on a data set, with tests of significance.

comparison.py      `compare`: from a data set to a leaderboard, resumable after every training
settings.py        the contestants, and the effort
spaces.py          the hyper-parameters that are searched for each loss
workbench.py       everything that losses share: rows, folds, features, batches, the initial head
trial.py           one setting trained on one fold
budget.py          plans within a budget of time; costs.py: measured costs; pace.py: the time that is left
search.py          settings of every loss, in proportion to its dimensions; journal.py: results, written at once
retrain.py         the best setting of every loss, with several seeds
query_metrics.py   metrics of all runs on the test classes, computed once
statistics.py      intervals and tests; null.py: their false alarms, for one loss against itself
leaderboard.py     the results; files.py, page.py, terminal.py: their files, report and terminal output

    from nearfar.compare.comparison import compare
    result = compare("photos", losses=["CircleLoss", "ProxyAnchorLoss"], trials=10)
    result.winner, result.rows[0].metrics["map@r"]

Requires `pip install 'nearfar[compare]'`.
"""
