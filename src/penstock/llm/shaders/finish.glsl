// The end of a step: writes the token where the next step, penalties and the host read it. If one of the
// logits was NaN, so that their highest key is NOT_A_NUMBER, it writes NO_TOKEN instead.
//
//   tokens    uint32: word 0 becomes the token
//   history   uint32, `history_size` words: the token at its position
//   ring      uint32, `ring_size` words: the token at its step
//   state     POSITION grows by count less PADDING, which becomes 0; STEP grows by 1

layout(binding = 8) writeonly buffer Tokens { uint tokens[]; };
layout(binding = 9) writeonly buffer History { uint history[]; };
layout(binding = 10) writeonly buffer Ring { uint ring[]; };
layout(binding = 11) buffer State { uint state[]; };
layout(push_constant) uniform Arguments { uint count; uint history_size; uint ring_size; };

uint next_position() { return state[POSITION] + count - state[PADDING]; }

void finish(uint highest, uint token) {
    if (highest == NOT_A_NUMBER) token = NO_TOKEN;
    uint position = next_position(), step = state[STEP];
    tokens[0] = token;
    history[position % history_size] = token;
    ring[step % ring_size] = token;
    state[POSITION] = position;
    state[PADDING] = 0u;
    state[STEP] = step + 1u;
}
