"""Which patches a class depends on: relevance, Grad-CAM, integrated gradients and their deletion curve."""
