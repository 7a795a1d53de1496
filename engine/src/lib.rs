//! Compile, load, launch: targets, compilers, drivers, streams, graphs, memory.
