"""The functions of candle-binding on the registry: a table of rows and a few verbs.

``include/candle_semantic_router.h`` is the only place where a prototype is written by hand.
``table`` has one row for each function: the verb that answers it, the slots it uses (models of
the one registry, named ``candle/...``), and its error value. From both, ``generate`` makes the C
functions of ``libcandle_semantic_router.so``, which reach Python through one private function of
``libsemantic.so``; ``attach`` binds the verbs when Python starts.

How to add a function: its prototype and one line of documentation in the header, and a row.

How to add a verb: a function ``verb(context, ...)``, listed in ``VERBS`` of its module, which
``attach`` lists. The annotations of its parameters say how the C arguments are read
(``arguments``); it returns a plain value, or an object with an attribute for each field of the C
struct, which ``answers`` writes; it raises a ``SemanticError`` to give the row's error value, with
the reason in the log.
"""
