// REPEAT(n, F): F(0) F(1) … F(n - 1), for up to 8.
//
// For arrays that must stay in registers: one that a loop indexes may be placed in memory instead.

#define REPEAT_1(F) F(0)
#define REPEAT_2(F) REPEAT_1(F) F(1)
#define REPEAT_3(F) REPEAT_2(F) F(2)
#define REPEAT_4(F) REPEAT_3(F) F(3)
#define REPEAT_5(F) REPEAT_4(F) F(4)
#define REPEAT_6(F) REPEAT_5(F) F(5)
#define REPEAT_7(F) REPEAT_6(F) F(6)
#define REPEAT_8(F) REPEAT_7(F) F(7)
#define REPEAT_N(n, F) REPEAT_##n(F)
#define REPEAT(n, F) REPEAT_N(n, F)
