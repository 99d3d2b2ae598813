"""A trained model put to use: embeddings, indexes that are searched, near-identical images.

run ──► encoder.py     images to embeddings; the fingerprint that an index remembers
             │  gallery.py    images with ids, from any data set; pictures from ids
             ▼
        index.py       what every index can do: search, items, vectors, change; open_index, make_index
             │  faiss_index.py    in a folder: change.py, store.py, texts.py, structures.py
             │  milvus_index.py   in Milvus: milvus_client.py
             ▼
        build.py, calibration.py, recall.py    images into an index, its threshold, what an approximate one misses
        search.py, grid.py                     what is nearest to pictures, as a list and as a page
        identify.py, identified.py             which enrolled class pictures are of, or none; of files and folders
        embed.py                               embeddings in a file
        duplicates.py, duplicates_page.py      near-identical images of a data set

    encoder = Encoder.of_run("runs/birds")
    index = open_index("runs/birds/index")
    search(index, encoder, ["bird.jpg"], k=5, threshold="calibrated")

Needs the packages of `pip install 'nearfar[retrieval]'`; Milvus those of `nearfar[milvus]`.
"""
