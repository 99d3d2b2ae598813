"""The web page for searching a gallery and inspecting a model's mistakes, and its HTTP API: `nearfar serve RUN [RUN2]`.

server.py          opens runs and indexes, and runs the server
app.py             create_app: the FastAPI application
security.py        checks of Host and Origin, response headers, the write token
limits.py          limits on uploads, request rates and concurrency
api/               endpoints: neighbours, items, diagnostics, changes; schema.py: their responses
served_run.py      a model with its gallery
served_gallery.py  the images of an index, under keys that are not paths
analysis.py        worst queries, confused classes, thresholds and the map
identification.py  open-set identification against the gallery
images.py          validation of uploads, thumbnails
page/              HTML, CSS and JavaScript, without external resources
"""
