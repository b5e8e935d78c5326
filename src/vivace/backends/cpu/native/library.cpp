// Identity of the library.
#include "api.h"

// Hash of sources and flags (build.py). Python rejects a library of other sources.
VIVACE_API const char* vivace_source_hash() { return VIVACE_SOURCE_HASH; }
