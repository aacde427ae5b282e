"""An OpenAI-compatible HTTP API in front of the embedded engine: real clients drive it while kvtop watches.

    fields.py   a body of JSON -> what is asked for, every value checked
    errors.py   refusals, in OpenAI's shape
    broker.py   between HTTP and the engine's process: requests in, pieces of answers out
    replies.py  pieces of answers -> JSON and server-sent events
    app.py      the routes
    protocol.py how long and how many connections are waited for
    session.py  server and engine as one session, which the TUI or the command line follows

HTTP is Starlette's and uvicorn's. All of it runs in the parent, in a thread of its own; the engine's process has the
tokenizer (``kvtop.run.answers``).
"""
