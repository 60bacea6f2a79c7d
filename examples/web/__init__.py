"""Small web applications that enqueue in the transaction of a request, and run a worker beside it."""
