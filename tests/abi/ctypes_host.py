"""Any Python, with nothing but its standard library: ctypes_host.py LIBRARY.

Prints the status and the message of the first call, and of one after it.
"""

import ctypes as c
import sys


class Error(c.Structure):
    """The struct semantic_error."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("status", c.c_int32),
        ("input_index", c.c_int64),
        ("message", c.c_char * 1024),
    )


def main(path: str) -> None:
    library = c.CDLL(path)
    library.semantic_status_name.restype = c.c_char_p
    error, result = c.pointer(Error(struct_size=c.sizeof(Error))), c.c_void_p(5)
    for status in (
        library.semantic_init(None, error),
        library.semantic_list_models(c.byref(result), error),
    ):
        assert status == error.contents.status or not status
        name = library.semantic_status_name(status).decode()
        print(name, error.contents.message.decode())
    print(result.value is None)
    library.semantic_free(result)


main(sys.argv[1])
