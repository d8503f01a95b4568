"""A node's cards as the page draws them: how they are cut (`layout`), who holds what (`holders`), tile by tile (`tiles`, `mosaic`)."""
