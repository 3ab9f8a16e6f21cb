"""Find the entities in a sentence through the C library, opened from a running Python.

The library adopts this interpreter, so use the Python of the library's environment:

build/env/bin/python examples/first_ctypes.py build/lib/libsemantic.so MODEL_FOLDER
"""

import ctypes as c
import os
import sys

SENTENCE = "I am Sarah Connor, write to sarah@example.org"


class Error(c.Structure):
    """The struct semantic_error."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("status", c.c_int32),
        ("input_index", c.c_int64),
        ("message", c.c_char * 1024),
    )


class Model(c.Structure):
    """The struct semantic_model."""

    _fields_ = (("id", c.c_uint64),)


class Text(c.Structure):
    """The struct semantic_text."""

    _fields_ = (("data", c.c_char_p), ("length", c.c_size_t))


class TokenClassification(c.Structure):
    """The struct semantic_token_classification."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("generation", c.c_uint64),
        ("rows", c.c_void_p),
        ("label_count", c.c_size_t),
        ("labels", c.POINTER(Text)),
        ("item_count", c.c_size_t),
        ("row_start", c.POINTER(c.c_int64)),
        ("row", c.POINTER(c.c_int64)),
        ("label_index", c.POINTER(c.c_int32)),
        ("score", c.POINTER(c.c_float)),
        ("start", c.POINTER(c.c_int64)),
        ("end", c.POINTER(c.c_int64)),
        ("probabilities", c.POINTER(c.c_float)),
    )


def main(library: str, folder: str) -> None:
    """Print the entities of the sentence with their byte ranges."""
    semantic = c.CDLL(library)
    semantic.semantic_free.argtypes = (c.c_void_p,)
    semantic.semantic_free.restype = None
    error = c.pointer(Error(struct_size=c.sizeof(Error)))

    def check(status: int) -> None:
        if status != 0:
            sys.exit(f"error {status}: {error.contents.message.decode()}")

    data = SENTENCE.encode()  # all offsets count UTF-8 bytes
    texts = (Text * 1)(Text(data, len(data)))
    model, found = Model(), c.POINTER(TokenClassification)()
    check(semantic.semantic_load_model(os.fsencode(folder), None, c.byref(model), error))
    check(
        semantic.semantic_classify_tokens(model, texts, c.c_size_t(1), None, c.byref(found), error)
    )

    result = found.contents
    for i in range(result.item_count):
        start, end = result.start[i], result.end[i]
        label = result.labels[result.label_index[i]].data.decode()
        score = result.score[i]
        print(f"{data[start:end].decode():20} {label:12} {score:.2f}  bytes {start} to {end}")

    semantic.semantic_free(found)
    check(semantic.semantic_unload_model(model, c.c_int64(1000), error))
    check(semantic.semantic_cleanup(c.c_int64(1000), error))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: first_ctypes.py LIBRARY MODEL_FOLDER (a token classifier)")
    main(sys.argv[1], sys.argv[2])
