"""What the demo model was taught, and how. It is in a checkout only: the wheel has the trained model.

``train``          trains it; ``conversations`` and ``tools`` make what it learns from, ``tokenizer`` its tokens
``questions``      the questions and answers, as values
``evaluate``       asks a trained model
"""
