"""Which patches a model and its classes depend on: attention rollout, relevance, Grad-CAM, integrated gradients and
their deletion curve.
"""
