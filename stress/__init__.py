"""Long runs that look for what short tests cannot show: growth, rare interleavings, inputs that no test thought of."""
