// Frequency and presence penalties: lowers the logit of every token that was sampled, by FREQUENCY for
// each time and by PRESENCE once.
//
//   logits    float32, VOCABULARY; changed in place
//   seen      uint32 from sample_tally.comp: how many tokens, then the tokens, each once
//   counts    uint32, VOCABULARY: how often each was sampled
//   settings  FREQUENCY, PRESENCE
//
// The tokens are dealt out to invocations in turn.

layout(local_size_x_id = 0) in;

layout(binding = 0) buffer Logits { float logits[]; };
layout(binding = 1) readonly buffer Seen { uint seen[]; };
layout(binding = 2) readonly buffer Counts { uint counts[]; };
layout(binding = 3) readonly buffer Settings { uint settings[]; };

void main() {
    float frequency = uintBitsToFloat(settings[FREQUENCY]);
    float presence = uintBitsToFloat(settings[PRESENCE]);
    uint number = seen[0], step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < number; i += step) {
        uint token = seen[1u + i];
        precise float often = float(counts[token]) * frequency;
        precise float lower = logits[token] - often;
        precise float last = lower - presence;
        logits[token] = last;
    }
}
