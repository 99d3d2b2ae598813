"""Uses of a trained model: embeddings, search indexes, identification and near-identical images.

run ──► encoder.py     images to embeddings; the fingerprint of the model that an index stores
             │  gallery.py    images with ids, from any data set; images from ids
             ▼
        index.py       the interface of indexes: search, items, vectors, change; open_index, make_index
             │  faiss_index.py    index in a folder: change.py, store.py, texts.py, structures.py
             │  milvus_index.py   index in Milvus: milvus_client.py
             ▼
        build.py, calibration.py, recall.py    adds images to an index, its threshold, recall of approximate indexes
        search.py, grid.py                     searches with images; results as a list and as a page
        identify.py, identified.py             open-set identification among enrolled classes, of files and folders
        embed.py                               writes embeddings to a file
        duplicates.py, duplicates_page.py      near-identical images of a data set

    encoder = Encoder.of_run("runs/birds")
    index = open_index("runs/birds/index")
    search(index, encoder, ["bird.jpg"], k=5, threshold="calibrated")

Needs the packages of `pip install 'nearfar[retrieval]'`, and for Milvus those of `nearfar[milvus]`.
"""
