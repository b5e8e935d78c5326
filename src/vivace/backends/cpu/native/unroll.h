// Of loops over tiles: GCC keeps an array in registers only if all its indices are constants.
#pragma once

#define UNROLL _Pragma("GCC unroll 16")
