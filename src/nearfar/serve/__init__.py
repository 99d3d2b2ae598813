"""A page to search a gallery with, and to see what a model gets wrong; and the API behind it.

nearfar serve RUN [RUN2]
            │
        start.py        opens the runs and their indexes, and listens
            │
        app.py          create_app: the FastAPI application
        security.py     who may ask; the headers of every answer; the token for writes
        limits.py       how much may be asked for
            │
        api/            search, items, insight (mistakes, thresholds, map), changes; schema.py: what they answer
            │
        runs.py         a run that is served: its model, its gallery
        gallery.py      the images of an index, under names that are no paths
        insight.py      worst queries, confused classes, what thresholds accept, the map
        images.py       pictures from strangers, and small pictures for the page
            │
        page/           the page itself: HTML, CSS and JavaScript as they are, nothing from outside
"""
