"""worstclass in a stack of one's own: an audit at the end of an epoch, Lightning, TensorBoard, Weights & Biases."""
