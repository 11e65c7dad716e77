// Shapes of the cases of attention.
#pragma once

#include "attention_reference.h"

namespace gptrain::ops_test::cases_attention {

// Sizes of one, primes, sizes around the 64-wide tiles, several tiles and tasks, shared keys, and scores so large that
// most probabilities vanish.
inline const AttentionShape shapes[] = {
    {.batch = 1, .tokens = 1, .heads = 1, .kv_heads = 1, .head_size = 1},
    {.batch = 2, .tokens = 1, .heads = 3, .kv_heads = 1, .head_size = 5},
    {.batch = 2, .tokens = 7, .heads = 2, .kv_heads = 2, .head_size = 3},
    {.batch = 1, .tokens = 63, .heads = 2, .kv_heads = 1, .head_size = 16, .gap = 5},
    {.batch = 2, .tokens = 64, .heads = 2, .kv_heads = 2, .head_size = 64},
    {.batch = 1, .tokens = 65, .heads = 4, .kv_heads = 2, .head_size = 33, .dropout = 0.1, .gap = 3},
    {.batch = 1, .tokens = 67, .heads = 2, .kv_heads = 1, .head_size = 256, .causal = false},
    {.batch = 2, .tokens = 131, .heads = 6, .kv_heads = 2, .head_size = 17, .causal = false, .dropout = 0.25, .gap = 1},
    {.batch = 1, .tokens = 150, .heads = 2, .kv_heads = 2, .head_size = 80, .dropout = 0.5},
    {.batch = 1, .tokens = 321, .heads = 3, .kv_heads = 3, .head_size = 64, .gap = 7},
    {.batch = 1, .tokens = 97, .heads = 1, .kv_heads = 1, .head_size = 128, .scale = 3},
    {.batch = 3, .tokens = 130, .heads = 1, .kv_heads = 1, .head_size = 1, .dropout = 0.9},
};

// Scores that a softcap bounds a little, a lot, and to its limits, in all kinds of masks.
inline const AttentionShape capped_shapes[] = {
    {.batch = 1, .tokens = 97, .heads = 1, .kv_heads = 1, .head_size = 128, .scale = 3, .softcap = 30},
    {.batch = 2,
     .tokens = 131,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 33,
     .dropout = 0.2,
     .scale = 0.5,
     .softcap = 2,
     .gap = 1,
     .window = 70,
     .documents = Documents::several},
    {.batch = 1, .tokens = 70, .heads = 2, .kv_heads = 1, .head_size = 256, .causal = false, .softcap = 0.5},
    {.batch = 1, .tokens = 128, .heads = 2, .kv_heads = 2, .head_size = 64, .softcap = 50}};

// Windows of one, two and an odd number of keys, of a tile and a token less and more, and of the whole sequence;
// documents, with windows, shared keys and dropout. The last are shapes that a device's library may serve.
inline const AttentionShape masked_shapes[] = {
    {.batch = 1, .tokens = 70, .heads = 2, .kv_heads = 1, .head_size = 16, .gap = 3, .window = 1},
    {.batch = 2, .tokens = 9, .heads = 2, .kv_heads = 2, .head_size = 5, .window = 2},
    {.batch = 1, .tokens = 150, .heads = 1, .kv_heads = 1, .head_size = 32, .dropout = 0.2, .window = 37},
    {.batch = 1, .tokens = 140, .heads = 2, .kv_heads = 1, .head_size = 24, .gap = 1, .window = 63},
    {.batch = 1, .tokens = 140, .heads = 1, .kv_heads = 1, .head_size = 64, .window = 64},
    {.batch = 1, .tokens = 140, .heads = 1, .kv_heads = 1, .head_size = 80, .dropout = 0.1, .window = 65},
    {.batch = 1, .tokens = 200, .heads = 1, .kv_heads = 1, .head_size = 16, .window = 129},
    {.batch = 1, .tokens = 67, .heads = 1, .kv_heads = 1, .head_size = 16, .window = 67},
    {.batch = 1, .tokens = 70, .heads = 2, .kv_heads = 1, .head_size = 16, .documents = Documents::one},
    {.batch = 1, .tokens = 70, .heads = 1, .kv_heads = 1, .head_size = 16, .documents = Documents::one_per_token},
    {.batch = 3, .tokens = 132, .heads = 2, .kv_heads = 1, .head_size = 17, .gap = 2, .documents = Documents::several},
    {.batch = 1,
     .tokens = 261,
     .heads = 1,
     .kv_heads = 1,
     .head_size = 64,
     .dropout = 0.25,
     .documents = Documents::several},
    {.batch = 1, .tokens = 70, .heads = 1, .kv_heads = 1, .head_size = 200, .documents = Documents::several},
    {.batch = 2,
     .tokens = 200,
     .heads = 1,
     .kv_heads = 1,
     .head_size = 32,
     .dropout = 0.1,
     .gap = 5,
     .window = 50,
     .documents = Documents::several},
    {.batch = 1, .tokens = 256, .heads = 1, .kv_heads = 1, .head_size = 64, .window = 100},
    {.batch = 1, .tokens = 128, .heads = 2, .kv_heads = 2, .head_size = 32, .documents = Documents::several},
};

// Documents that a device's library serves: fewer than fit, exactly as many, and more; all in one sequence and none in
// the next; of one token, of a whole sequence, and up to the end of one; with windows and rows that are parts of wider
// ones. Backward may have smaller pieces, of which some hold too many.
inline const AttentionShape document_shapes[] = {
    {.batch = 1,
     .tokens = 128,
     .heads = 1,
     .kv_heads = 1,
     .head_size = 8,
     .documents = Documents::one,
     .max_documents = 3},
    {.batch = 2,
     .tokens = 128,
     .heads = 2,
     .kv_heads = 1,
     .head_size = 8,
     .documents = Documents::one_per_token,
     .max_documents = 128},
    {.batch = 1,
     .tokens = 128,
     .heads = 1,
     .kv_heads = 1,
     .head_size = 16,
     .documents = Documents::one_per_token,
     .max_documents = 127},
    {.batch = 2,
     .tokens = 128,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 24,
     .gap = 8,
     .documents = Documents::several,
     .max_documents = 6},
    {.batch = 3,
     .tokens = 256,
     .heads = 2,
     .kv_heads = 1,
     .head_size = 16,
     .window = 37,
     .documents = Documents::several,
     .max_documents = 6},
    {.batch = 4,
     .tokens = 128,
     .heads = 1,
     .kv_heads = 1,
     .head_size = 32,
     .gap = 16,
     .documents = Documents::several,
     .max_documents = 4},
};

// Heads of GPT-2 124M, and of 128; short and long sequences, with dropout, a window and documents.
inline const AttentionShape bench_shapes[] = {
    {.batch = 4, .tokens = 64, .heads = 12, .kv_heads = 12, .head_size = 64},
    {.batch = 1, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_size = 64},
    {.batch = 8, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_size = 64},
    {.batch = 1, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_size = 64, .dropout = 0.1},
    {.batch = 1, .tokens = 1024, .heads = 6, .kv_heads = 6, .head_size = 128},
    {.batch = 1, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_size = 64, .window = 256},
    {.batch = 1, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_size = 64, .documents = Documents::one},
    {.batch = 8, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_size = 64, .documents = Documents::several},
    {.batch = 8,
     .tokens = 1024,
     .heads = 12,
     .kv_heads = 12,
     .head_size = 64,
     .documents = Documents::several,
     .max_documents = 8}};

// Heads that are slices of a wider matrix.
inline const AttentionShape sliced_shapes[] = {
    {.batch = 2, .tokens = 67, .heads = 4, .kv_heads = 4, .head_size = 16, .dropout = 0.3},
    {.batch = 1,
     .tokens = 70,
     .heads = 6,
     .kv_heads = 2,
     .head_size = 8,
     .dropout = 0.2,
     .window = 20,
     .documents = Documents::several},
    {.batch = 2, .tokens = 9, .heads = 3, .kv_heads = 3, .head_size = 5}};

// Small shapes, whose gradients are compared with central differences.
inline const AttentionShape differentiated_shapes[] = {
    {.batch = 1, .tokens = 9, .heads = 2, .kv_heads = 1, .head_size = 6},
    {.batch = 1, .tokens = 9, .heads = 2, .kv_heads = 1, .head_size = 6, .dropout = 0.2, .scale = 1, .softcap = 1.5},
    {.batch = 2, .tokens = 5, .heads = 2, .kv_heads = 2, .head_size = 3, .causal = false},
    {.batch = 1, .tokens = 70, .heads = 1, .kv_heads = 1, .head_size = 4, .dropout = 0.2},
    {.batch = 1,
     .tokens = 70,
     .heads = 1,
     .kv_heads = 1,
     .head_size = 4,
     .dropout = 0.2,
     .window = 5,
     .documents = Documents::several}};

}  // namespace gptrain::ops_test::cases_attention
