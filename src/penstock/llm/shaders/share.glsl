// What a workgroup of a product takes: tokens, and the matrix that they are multiplied with.
//
// Without EXPERTS there is one matrix, and group number n takes tokens n * size to (n + 1) * size - 1.
//
// With EXPERTS there is a matrix for each expert, and a row of y for each pair of a token and an
// expert that it takes. Rows that go through one expert are neighbours, and come in tiles:
//
//   tiles     uint32[tiles, 3]: an expert, the first row, and the row after the last; may be empty
//   sources   uint32[rows]: the row of x that is multiplied for each row of y, if `gather` is 1; if it
//             is 0, row n of x is that for row n of y
//   begins    uint32[experts]: the byte at which each expert's matrix begins, counted from `begin` on;
//             NOWHERE if another launch has it bound
//   split     groups of a tile: the tokens of a tile divided by those of a group
//
// The includer defines, before the #include, push constants `tokens` and, with EXPERTS, `split` and
// `gather`; and calls
//   bool find_share(uint group, uint size, uint begin)      fills in `share`; false: nothing to do
//   uint row_of_x(uint token)                               the row of x for row `token` of y

struct Share {
    uint begin;  // the byte at which the matrix begins
    uint first;  // token
    uint end;    // the token after the last; a group takes fewer if these are more than its size
};
Share share;

#ifdef EXPERTS

#define NOWHERE 0xFFFFFFFFu

layout(binding = 4) readonly buffer Tiles { uint tiles[]; };
layout(binding = 5) readonly buffer Sources { uint sources[]; };
layout(binding = 6) readonly buffer Begins { uint begins[]; };

bool find_share(uint group, uint size, uint begin) {
    uint tile = group / split * 3u;
    uint there = begins[tiles[tile]];
    share = Share(begin + there, tiles[tile + 1u] + group % split * size, tiles[tile + 2u]);
    return there != NOWHERE && share.first < share.end;
}

uint row_of_x(uint token) { return gather != 0u ? sources[token] : token; }

#else

bool find_share(uint group, uint size, uint begin) {
    share = Share(begin, group * size, tokens);
    return true;
}

uint row_of_x(uint token) { return token; }

#endif
