// bool, and casts between it, int and uint.

bool ps_bool(bool x) { return x; }
bool ps_bool(int x) { return x != 0; }
bool ps_bool(uint x) { return x != 0u; }

int ps_int32(bool x) { return x ? 1 : 0; }
int ps_int32(int x) { return x; }
int ps_int32(uint x) { return int(x); }

uint ps_uint32(bool x) { return x ? 1u : 0u; }
uint ps_uint32(int x) { return uint(x); }
uint ps_uint32(uint x) { return x; }

bool ps_add(bool a, bool b) { return a || b; }

bool ps_multiply(bool a, bool b) { return a && b; }

bool ps_minimum(bool a, bool b) { return a && b; }

bool ps_maximum(bool a, bool b) { return a || b; }

bool ps_bitwise_and(bool a, bool b) { return a && b; }

bool ps_bitwise_or(bool a, bool b) { return a || b; }

bool ps_bitwise_xor(bool a, bool b) { return a != b; }

bool ps_bitwise_invert(bool x) { return !x; }

bool ps_equal(bool a, bool b) { return a == b; }

bool ps_not_equal(bool a, bool b) { return a != b; }

bool ps_less(bool a, bool b) { return !a && b; }

bool ps_less_equal(bool a, bool b) { return !a || b; }

bool ps_greater(bool a, bool b) { return a && !b; }

bool ps_greater_equal(bool a, bool b) { return a || !b; }

bool ps_logical_not(bool x) { return !x; }

bool ps_logical_and(bool a, bool b) { return a && b; }

bool ps_logical_or(bool a, bool b) { return a || b; }

bool ps_logical_xor(bool a, bool b) { return a != b; }
