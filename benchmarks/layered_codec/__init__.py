"""A decoder of the codec on trial; what is proven moves to `vivace.backends.cuda_graph`."""
