"""From names on disk to uint8 batches on the device: scan, order, decode, augment, batch."""
