"""Programs that Numba compiles for this processor when a model is loaded; no C compiler is needed.

``support``   whether there is Numba, and for which types of numbers there are programs
``processor``  what this processor is good at
``numbers``   how numbers of a type are read and written, and the exponential function
``compiled``  compiles a program once for each machine
``program``   calls it with addresses of tensors, and tells who records that
``rows``      programs for each token by itself: norms, rotations, gates
``addresses``  what programs do with addresses
``tiles``     parts of a product that stay in registers; ``team``: threads that compute parts of a program
``products``  the products of tokens and weights; ``weights`` lays weights out for it, and calls it
``wide_products``  the same of bfloat16 that are made float32
``sums``      sums of tiles, whatever their size, and products of tiles
``low_rank``  what adapters add to products
``attention``  attention, with a package of its own
``row_programs``  calls those of ``rows`` with tensors
``cache_writes``  writes keys and values to the paged cache
``masks``     scores of banned tokens
``noise``     random bits for the tokens that can be drawn
"""
