/* number_test.c: number formats for all their codes, rounding at all midpoints
 * between codes, the exponentials over their range, Philox against its published
 * vectors, slots, and the rules of sampling: each against a naive definition. */
#include <math.h>
#include <stdio.h>

#include "proto/number/exp.h"
#include "proto/number/formats.h"
#include "proto/number/philox.h"
#include "proto/plan/kv_slot.h"
#include "proto/plan/sample_rules.h"
#include "support/test.h"

/* ---- formats ------------------------------------------------------------------ */

/* A floating-point format by its numbers, and the functions under test. */
struct format {
    const char *name;
    int exponent_bits, mantissa_bits;
    unsigned largest; /* code of the largest finite value */
    unsigned above;   /* code of what lies beyond it: infinity, or the largest again */
    float (*decode)(unsigned code);
    unsigned (*encode)(float x);
};

static float decode_bf16(unsigned code)
{
    return bf16_to_float((uint16_t)code);
}

static unsigned encode_bf16(float x)
{
    return float_to_bf16(x);
}

static float decode_f16(unsigned code)
{
    return f16_to_float((uint16_t)code);
}

static unsigned encode_f16(float x)
{
    return float_to_f16(x);
}

static float decode_e4m3(unsigned code)
{
    return e4m3_to_float((uint8_t)code);
}

static unsigned encode_e4m3(float x)
{
    return float_to_e4m3(x);
}

static const struct format formats[] = {
    { "bf16", 8, 7, 0x7F7F, 0x7F80, decode_bf16, encode_bf16 },
    { "f16", 5, 10, 0x7BFF, 0x7C00, decode_f16, encode_f16 },
    { "e4m3", 4, 3, 0x7E, 0x7E, decode_e4m3, encode_e4m3 },
};

enum { FORMATS = sizeof formats / sizeof *formats };

static unsigned sign_of(const struct format *f)
{
    return 1u << (f->exponent_bits + f->mantissa_bits);
}

/* The value of a code without sign, by the definition. */
static double value_of(const struct format *f, unsigned code)
{
    unsigned exponent = code >> f->mantissa_bits, mantissa = code - (exponent << f->mantissa_bits);
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    if (code > f->largest)
        return code == f->above ? (double)INFINITY : (double)NAN;
    if (exponent == 0)
        return ldexp(mantissa, 1 - bias - f->mantissa_bits);
    return ldexp((1u << f->mantissa_bits) + mantissa, (int)exponent - bias - f->mantissa_bits);
}

static void expect_code(const struct format *f, float x, unsigned want)
{
    unsigned got = f->encode(x), minus = f->encode(-x);
    if (got != want || minus != (want | sign_of(f)))
        fail_msg("%s: +-%a became %x and %x, expected %x and its negative", f->name, (double)x, got,
                 minus, want);
}

TEST(every_code_has_its_value_and_comes_back)
{
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        for (unsigned code = 0; code < 2 * sign_of(f); code++) {
            unsigned mag = code & (sign_of(f) - 1);
            double want = value_of(f, mag);
            float got = f->decode(code);
            if (isnan(want)) {
                assert_true(isnan(got) && !!signbit(got) == (code != mag));
                assert_true(isnan(f->decode(f->encode(got))));
                continue;
            }
            if ((double)got != (code == mag ? want : -want) || !!signbit(got) != (code != mag))
                fail_msg("%s: code %x is %a, expected %a", f->name, code, (double)got, want);
            assert_int_equal(f->encode(got), code);
        }
    }
}

/* Between neighbours: the midpoint goes to the even code, the floats on either
 * side of it to the nearer one.  Midpoints are exact in float. */
TEST(rounding_is_to_the_nearest_and_ties_go_to_even)
{
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        for (unsigned code = 0; code < f->largest; code++) {
            float mid = (float)((value_of(f, code) + value_of(f, code + 1)) / 2);
            expect_code(f, mid, code % 2 == 0 ? code : code + 1);
            expect_code(f, nextafterf(mid, 0), code);
            expect_code(f, nextafterf(mid, INFINITY), code + 1);
        }
    }
}

/* The last finite code, then half a unit in its last place beyond. */
TEST(beyond_the_largest)
{
    for (int i = 0; i < FORMATS; i++) {
        const struct format *f = &formats[i];
        double unit = value_of(f, f->largest) - value_of(f, f->largest - 1);
        float edge = (float)(value_of(f, f->largest) + unit / 2);
        expect_code(f, nextafterf(edge, 0), f->largest);
        expect_code(f, edge, f->above);
        expect_code(f, INFINITY, f->above);
        expect_code(f, 0x1.fffffep127f, f->above);
    }
    assert_int_equal(float_to_f16(65520.0f), 0x7C00);
    assert_int_equal(float_to_f16(65519.9f), 0x7BFF);
    assert_int_equal(float_to_e4m3(1e9f), 0x7E);
    assert_int_equal(float_to_e4m3(-INFINITY), 0xFE);
}

/* All kinds of NaN of a float: quiet, signalling, either sign, mantissas whose
 * upper bits are zero. */
TEST(nan_stays_nan)
{
    for (uint32_t sign = 0; sign < 2; sign++)
        for (int bit = 0; bit < 23; bit++)
            for (int i = 0; i < FORMATS; i++) {
                const struct format *f = &formats[i];
                float x = bits_to_float(sign << 31 | 0x7F800000u | 1u << bit);
                unsigned code = f->encode(x);
                assert_true(isnan(f->decode(code)));
                assert_int_equal((code & sign_of(f)) != 0, sign);
            }
}

TEST(int8_rounds_saturates_and_defines_the_rest)
{
    for (int k = -300; k <= 300; k++) {
        int even = k % 2 == 0 ? k : k + 1, want = even < -128 ? -128 : even > 127 ? 127 : even;
        int here = k < -128 ? -128 : k > 127 ? 127 : k;
        assert_int_equal(quantize_int8((float)k, 1), here);
        assert_int_equal(quantize_int8((float)k + 0.5f, 1), want);
        assert_int_equal(quantize_int8(nextafterf((float)k + 0.5f, -1000), 1), here);
        assert_int_equal(quantize_int8((float)k * 0.25f, 0.25f), here);
        assert_int_equal(quantize_int8((float)k, -1), -k < -128 ? -128 : -k > 127 ? 127 : -k);
    }
    assert_int_equal(quantize_int8(INFINITY, 1), 127);
    assert_int_equal(quantize_int8(-INFINITY, 1), -128);
    assert_int_equal(quantize_int8(1e38f, 1e-3f), 127); /* the quotient is infinite */
    assert_int_equal(quantize_int8(5, 0), 0);
    assert_int_equal(quantize_int8(NAN, 1), 0);
    assert_int_equal(quantize_int8(5, NAN), 0);
    assert_int_equal(quantize_int8(INFINITY, INFINITY), 0);
}

TEST(scaled_e4m3)
{
    for (unsigned code = 0; code < 256; code++)
        if ((code & 0x7F) != 0x7F)
            assert_int_equal(quantize_e4m3(e4m3_to_float((uint8_t)code) * 0.125f, 0.125f), code);
    assert_int_equal(quantize_e4m3(5, 0), 0);
    assert_int_equal(quantize_e4m3(NAN, 1) & 0x7F, 0x7F);
    assert_int_equal(quantize_e4m3(900, 2), 0x7E);
}

/* ---- arithmetic ------------------------------------------------------------------ */

TEST(min_max_and_rounding)
{
    assert_true(float_max(1, 2) == 2 && float_max(2, 1) == 2 && float_min(1, 2) == 1);
    assert_true(float_max(-INFINITY, 3) == 3 && float_min(INFINITY, 3) == 3);
    assert_true(float_max(NAN, 3) == 3 && isnan(float_max(3, NAN)));
    assert_true(float_min(NAN, 3) == 3 && isnan(float_min(3, NAN)));
    for (int k = -100000; k <= 100000; k++)
        assert_true(float_rint((float)k / 8) == nearbyintf((float)k / 8));
    assert_true(float_rint(4194303.5f) == 4194304.0f);
}

TEST(exponentials)
{
    double worst = 0;
    for (float x = -87; x <= 0; x += 0.0173f)
        assert_true(fabs((double)exp_nonpositive(x) / exp((double)x) - 1) < 2e-7);
    for (uint32_t u = 0; u <= float_to_bits(87.0f); u += 9973) {
        float x = bits_to_float(u);
        assert_true(fabs((double)exp_nonpositive(-x) / exp(-(double)x) - 1) < 2e-7);
        for (int sign = -1; sign <= 1; sign += 2) {
            float got = exp_any((float)sign * x);
            double want = exp(sign * (double)x);
            double unit = (double)nextafterf((float)want, INFINITY) - (double)(float)want;
            worst = fmax(worst, fabs((double)got - want) / unit);
        }
    }
    if (!(worst <= 2))
        fail_msg("exp_any: %g units of the last place, expected at most 2", worst);
    assert_true(exp_nonpositive(-INFINITY) == 0 && exp_nonpositive(0) == 1);
    assert_true(exp_nonpositive(-87.5f) == 0 && isnan(exp_nonpositive(NAN)));
    assert_true(exp_any(0) == 1 && exp_any(-INFINITY) == 0 && isinf(exp_any(INFINITY)));
    assert_true(exp_any(-87.34f) == 0 && exp_any(-87.33f) > 0 && isinf(exp_any(88.73f)));
    assert_true(isfinite(exp_any(88.72f)) && isnan(exp_any(NAN)));
}

TEST(philox_repeats_its_published_vectors)
{
    static const struct {
        uint32_t c[4], k[2], want[4];
    } v[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        uint32_t got[4];
        philox4x32(v[i].c, v[i].k, got);
        assert_memory_equal(got, v[i].want, sizeof got);
    }
}

TEST(philox_units_lie_in_the_unit_interval)
{
    double sum = 0;
    for (uint64_t i = 0; i < 4096; i++) {
        double u = philox_unit(UINT64_MAX - i, i << 20), scaled = u * 0x1p53;
        assert_true(u >= 0 && u < 1 && scaled == floor(scaled));
        assert_true(philox_unit(UINT64_MAX - i, i << 20) == u);
        sum += u;
    }
    assert_true(fabs(sum / 4096 - 0.5) < 0.02);
    assert_true(philox_unit(1, 2) != philox_unit(2, 1));
}

/* ---- slots ------------------------------------------------------------------------- */

TEST(slots_count_tokens_over_blocks)
{
    for (int32_t shift = 0; shift <= 20; shift++)
        assert_int_equal(kv_block_shift((uint64_t)1 << shift), shift);
    for (int64_t tokens = 16; tokens <= 256; tokens *= 2)
        for (int64_t block = 0; block < 40; block += 3)
            for (int64_t pos = 0; pos < 3 * tokens; pos++)
                assert_int_equal(kv_slot(block, pos, kv_block_shift((uint64_t)tokens)),
                                 block * tokens + pos % tokens);
    assert_true(kv_slot(INT32_MAX, 255, 8) == ((int64_t)INT32_MAX << 8) + 255);
}

/* ---- rules of sampling ---------------------------------------------------------------- */

TEST(bias_and_mask_touch_the_named_ids)
{
    float y[4] = { 1, 2, 3, 4 };
    struct logit_bias bias[] = { { 0, 5 }, { 9, 1 }, { -1, 1 }, { 0, -2 } };
    int32_t masked[] = { 2, 4, -7 };
    sample_bias_and_mask(y, 4, bias, 4, masked, 3);
    assert_true(y[0] == 4 && y[1] == 2 && isinf(y[2]) && y[2] < 0 && y[3] == 4);
    sample_bias_and_mask(y, 4, NULL, 0, NULL, 0);
    assert_true(y[0] == 4);
}

TEST(penalties_of_a_seen_token)
{
    assert_true(sample_penalise(3, SAMPLE_IN_PROMPT, 1.5f, 1, 1) == 2);
    assert_true(sample_penalise(-3, SAMPLE_IN_PROMPT, 1.5f, 1, 1) == -4.5f);
    assert_true(sample_penalise(3, 2, 1.5f, 0.25f, 0.5f) == 1);
    assert_true(sample_penalise(3, SAMPLE_IN_PROMPT | 2, 1.5f, 0.25f, 0.5f) == 1);
    assert_true(sample_penalise(0, 1, 2, 0, 0) == 0);
}

TEST(what_turns_filters_off)
{
    assert_true(sample_greedy(0, -1) && sample_greedy(0.9e-5f, 0) && sample_greedy(1, 1));
    assert_true(!sample_greedy(1e-5f, 0) && !sample_greedy(1, 2));
    assert_true(!sample_cuts_top_k(-1, 10) && !sample_cuts_top_k(0, 10));
    assert_true(!sample_cuts_top_k(1, 10) && !sample_cuts_top_k(10, 10));
    assert_true(sample_cuts_top_k(2, 10) && sample_cuts_top_k(9, 10));
    assert_true(sample_share(1) == 1 && sample_share(7) == 1 && sample_share(0.5f) == 0.5f);
    assert_true(sample_share(-1) == 0 && sample_floor(-1) == 0 && sample_floor(0.25f) == 0.25f);
}

TEST(candidates_are_ordered_by_weight_then_id)
{
    assert_true(sample_before(2, 9, 1, 0) && !sample_before(1, 0, 2, 9));
    assert_true(sample_before(1, 3, 1, 4) && !sample_before(1, 4, 1, 3));
    assert_true(!sample_before(1, 3, 1, 3) && sample_kept(1, 3, 1, 3));
    assert_true(sample_kept(2, 9, 1, 0) && sample_kept(1, 2, 1, 3) && !sample_kept(1, 4, 1, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(every_code_has_its_value_and_comes_back),
        RUN(rounding_is_to_the_nearest_and_ties_go_to_even),
        RUN(beyond_the_largest),
        RUN(nan_stays_nan),
        RUN(int8_rounds_saturates_and_defines_the_rest),
        RUN(scaled_e4m3),
        RUN(min_max_and_rounding),
        RUN(exponentials),
        RUN(philox_repeats_its_published_vectors),
        RUN(philox_units_lie_in_the_unit_interval),
        RUN(slots_count_tokens_over_blocks),
        RUN(bias_and_mask_touch_the_named_ids),
        RUN(penalties_of_a_seen_token),
        RUN(what_turns_filters_off),
        RUN(candidates_are_ordered_by_weight_then_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
