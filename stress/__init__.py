"""Long runs that look for what short tests cannot show: growth, rare interleavings, inputs nobody thought of."""
