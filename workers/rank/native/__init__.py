"""Programs that Numba compiles for this processor when a model is loaded; no C compiler is needed.

``support``   whether there is Numba, and for which types of numbers there are programs
``numbers``   how numbers of a type are read and written, and the exponential function
``compiled``  compiles a program once for each machine
``program``   calls it with addresses of tensors, and tells who records that
``rows``      programs for each token by itself: norms, rotations, gates
``paged``     programs that read or write the paged cache
``tiles``     parts of a product that stay in registers, and threads that compute parts of a program
``products``  the products of tokens and weights; ``weights`` lays weights out for it, and calls it
``row_programs`` and ``cache_writes``  call those of ``rows``, and the one that writes, with tensors
``masks``     scores of banned tokens
``noise``     random bits for the tokens that can be drawn
``tiled``     causal attention of prompts by tiles; ``causal`` calls it, or has torch compute the products
``scores``    the softmax for those products
"""
