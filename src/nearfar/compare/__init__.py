"""Which loss is best on this data, decided fairly.

comparison.py   compare: from a data set to a leaderboard, resumable at every step
settings.py     what is compared, and with what effort
spaces.py       which hyper-parameters of which loss are searched, and where
ground.py       what all losses share: rows, folds, features, batches, the head as it starts
trial.py        one setting trained on one fold
budget.py       how much of it fits into a time; costs.py: what it costs here; pace.py: whether there is time to go on
search.py       settings of every loss, in proportion to what is searched; journal.py: what was found, kept at once
retrain.py      the best setting of every loss, over several seeds
look.py         the one look at the test classes
statistics.py   intervals, and which differences are more than chance;  null.py: whether that is so, on one loss
                against itself
leaderboard.py  results and their files;  live.py: what is seen meanwhile

    from nearfar.compare.comparison import compare
    result = compare("photos", losses=["CircleLoss", "ProxyAnchorLoss"], trials=10)
    result.winner, result.rows[0].metrics["map@r"]

Needs the packages of `pip install 'nearfar[compare]'`.
"""
