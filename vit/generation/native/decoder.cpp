// One step of a transformer decoder with a key-value cache, for one new token of each beam of some rows of a batch.
//
// All tensors are float32 and row-major. Letters in shapes: B rows of the batch, W beams of a row, M = B*W tokens,
// D width, H heads, K head width, L cached tokens, C capacity of the cache, S memory tokens, V vocabulary. The structs
// are those of structs.py.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int PANEL = 2 * LANES;  // columns that are computed together

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef float Unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));

inline Vector load(const float* x) { return *reinterpret_cast<const Unaligned*>(x); }
inline void store(float* x, Vector values) { *reinterpret_cast<Unaligned*>(x) = values; }

// e^x for x <= 88, relative error 2e-7: 2^n times a polynomial of the rest r, |r| <= ln(2) / 2
inline Vector exponential(Vector x) {
    const Vector least = Vector{} - 87.0f, magic = Vector{} + 12582912.0f;  // 1.5 * 2^23 rounds to integers
    x = x < least ? least : x;
    const Vector shifted = x * 1.44269504f + magic, n = shifted - magic;
    const Vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Vector sum = r * 1.98756915e-4f + 1.39819995e-3f;
    sum = sum * r + 8.33345190e-3f;
    sum = sum * r + 4.16657962e-2f;
    sum = sum * r + 1.66666655e-1f;
    sum = sum * r + 5.00000012e-1f;
    sum = sum * r * r + r + 1.0f;
    return sum * (Vector)(((Integers)shifted - (Integers)magic + 127) << 23);
}

// y (rows,columns) = x (rows,depth) times a matrix (depth,columns) + bias, added to y if `add`.
struct Product {
    const float* x;
    int64_t rows, x_stride, depth;
    const float* matrix;  // panels of PANEL columns, of which the last may be read beyond `columns`
    int64_t stride;        // between the rows of a panel
    int64_t panel_stride;  // between the panels
    const float* bias;     // or null
    float* y;
    int64_t columns, y_stride;
    bool add;
};

// Writes columns column ... column + LANES - 1 of one row of y, or as many as it has.
inline void finish(const Product& p, int64_t row, int64_t column, Vector sums) {
    float* y = p.y + row * p.y_stride + column;
    if (column + LANES <= p.columns) {
        if (p.bias) sums += load(p.bias + column);
        store(y, p.add ? sums + load(y) : sums);
        return;
    }
    for (int64_t i = 0; i < p.columns - column; i++)
        y[i] = sums[i] + (p.bias ? p.bias[column + i] : 0.0f) + (p.add ? y[i] : 0.0f);
}

// R rows times one panel, of which each number is read once; the sums of 6 rows fill 12 of the 16 registers of AVX2.
template <int R>
void tile(const Product& p, int64_t row, int64_t column) {
    const float *x = p.x + row * p.x_stride, *panel = p.matrix + column / PANEL * p.panel_stride;
    const int64_t x_stride = p.x_stride;
    Vector sums[R][2] = {};
    for (int64_t k = 0; k < p.depth; k++) {
        const Vector left = load(panel + k * p.stride), right = load(panel + k * p.stride + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const float value = x[r * x_stride + k];
            sums[r][0] += value * left;
            sums[r][1] += value * right;
        }
    }
    for (int r = 0; r < R; r++) {
        finish(p, row + r, column, sums[r][0]);
        finish(p, row + r, column + LANES, sums[r][1]);
    }
}

// Panel by panel, so that a panel stays in the first cache while it is multiplied by all rows.
void multiply(const Product& p) {
    for (int64_t column = 0; column < p.columns; column += PANEL) {
        int64_t row = 0;
        for (; row + 6 <= p.rows; row += 6) tile<6>(p, row, column);
        switch (p.rows - row) {
            case 5: tile<5>(p, row, column); break;
            case 4: tile<4>(p, row, column); break;
            case 3: tile<3>(p, row, column); break;
            case 2: tile<2>(p, row, column); break;
            case 1: tile<1>(p, row, column); break;
        }
    }
}

}  // namespace

extern "C" {

struct Linear {
    const float* weight;  // (columns/PANEL,in,PANEL), zero beyond `out`
    const float* bias;    // (out) or null
    int64_t in, out;
};

struct Norm {
    const float* weight;  // (D), null for no norm
    const float* bias;    // (D), null for a root mean square norm
    double eps;
};

struct Layer {
    Linear qkv, proj, q, cross_proj, fc1, fc2;
    Norm norm1, cross_norm, norm2;
};

struct Decoder {
    const Layer* layers;
    Norm norm;
    Linear head;
    int64_t depth, dim, heads, head_dim;
    int64_t hidden;      // width between the layers of an MLP
    int64_t activation;  // index in ACTIVATIONS of structs.py
    int64_t gated;       // whether fc1 computes a gate and values (SwiGLU)
    int64_t pre_norm;
};

struct Cache {
    float* keys;                 // (layers,B,H,K,C): transposed, so that scores of LANES tokens are computed together
    float* values;               // (layers,B,H,C,K rounded up to PANEL)
    const float* memory_keys;    // (layers,B,H,K,S rounded up to PANEL)
    const float* memory_values;  // (layers,B,H,S rounded up to PANEL,K rounded up to PANEL)
    const uint8_t* memory_mask;  // (B,S) or null
    int64_t rows, capacity, length, memory, memory_capacity;
};

struct Step {
    float* x;             // (B,W,D): the new tokens, overwritten
    float* logits;        // (B,W,V)
    const uint8_t* mask;  // (B,W,L+W), the tokens that each beam attends to; null for all
    const float* cos;     // (K), of the rotary positions of the new tokens, or null
    const float* sin;
    const int64_t* pairs;  // (K), the other channel of each pair
    int64_t beams;
};

int64_t panel() { return PANEL; }

}  // extern "C"

namespace {

inline int64_t rounded(int64_t size) { return (size + PANEL - 1) / PANEL * PANEL; }

// y (M,out) = x (M,in) weight^T + bias, added to y if `add`
void linear(const float* x, int64_t rows, const Linear& layer, float* y, bool add = false) {
    multiply({x, rows, layer.in, layer.in, layer.weight, PANEL, layer.in * PANEL, layer.bias, y, layer.out, layer.out,
              add});
}

// x (M,D) -> y (M,D), which may be x
void normalize(const float* x, int64_t rows, int64_t dim, const Norm& norm, float* y) {
    for (int64_t row = 0; row < rows; row++, x += dim, y += dim) {
        double mean = 0.0, square = 0.0;
        if (norm.bias) {
            for (int64_t i = 0; i < dim; i++) mean += x[i];
            mean /= dim;
        }
        for (int64_t i = 0; i < dim; i++) square += (x[i] - mean) * (x[i] - mean);
        const float shift = mean, scale = 1.0 / std::sqrt(square / dim + norm.eps);
        for (int64_t i = 0; i < dim; i++)
            y[i] = (x[i] - shift) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
    }
}

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

inline float activate(float x, int64_t activation) {
    switch (activation) {
        case 0: return std::max(x, 0.0f);
        case 1: return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
        case 2: return x * sigmoid(x);
        default: return x * sigmoid(1.702f * x);
    }
}

// The hidden units of an MLP, in place; those of a gated one (M,2*hidden) become (M,hidden).
void activate_all(float* x, int64_t rows, const Decoder& decoder) {
    const int64_t hidden = decoder.hidden;
    for (int64_t row = 0; row < rows; row++) {
        const float* from = x + row * hidden * (decoder.gated ? 2 : 1);
        float* to = x + row * hidden;
        for (int64_t i = 0; i < hidden; i++)
            to[i] = activate(from[i], decoder.activation) * (decoder.gated ? from[hidden + i] : 1.0f);
    }
}

// Rotary positions of one head: x (K), in place.
void rotate(float* x, int64_t K, const Step& step) {
    float turned[1024];  // WIDEST_HEAD of support.py
    for (int64_t i = 0; i < K; i++) turned[i] = x[i] * step.cos[i] + x[step.pairs[i]] * step.sin[i];
    std::copy(turned, turned + K, x);
}

// scores (W,width) -> attention weights, 0 where masked and beyond `count`; mask (W,mask_stride) or null
void softmax(float* scores, int64_t rows, int64_t width, int64_t count, float scale, const uint8_t* mask,
             int64_t mask_stride) {
    for (int64_t row = 0; row < rows; row++, scores += width) {
        float largest = -INFINITY;
        for (int64_t i = 0; i < count; i++) {
            const bool seen = !mask || mask[row * mask_stride + i];
            scores[i] = seen ? scores[i] * scale : -INFINITY;
        }
        std::fill(scores + count, scores + width, -INFINITY);
        for (int64_t i = 0; i < count; i++) largest = std::max(largest, scores[i]);
        if (largest == -INFINITY) {  // all are masked
            std::fill(scores, scores + width, 0.0f);
            continue;
        }
        Vector sums = {};
        for (int64_t i = 0; i < width; i += LANES) {
            const Vector differences = load(scores + i) - largest;
            Vector weights = exponential(differences);
            weights = differences < -87.0f ? Vector{} : weights;
            sums += weights;
            store(scores + i, weights);
        }
        float sum = 0.0f;
        for (int i = 0; i < LANES; i++) sum += sums[i];
        for (int64_t i = 0; i < width; i += LANES) store(scores + i, load(scores + i) * (1.0f / sum));
    }
}

struct Head {  // what the queries of one head of one row attend to
    const float* keys;     // (K,capacity)
    const float* values;   // (capacity,K rounded up)
    const uint8_t* mask;
    int64_t mask_stride, capacity, count;
};

// queries (W,K) of one head -> out (W,K), with strides between the beams; scores is (W,rounded count)
void attend(const float* queries, int64_t query_stride, int64_t beams, int64_t K, const Head& head, float* scores,
            float* out, int64_t out_stride) {
    const int64_t width = rounded(head.count);
    multiply({queries, beams, query_stride, K, head.keys, head.capacity, PANEL, nullptr, scores, head.count, width,
              false});
    softmax(scores, beams, width, head.count, 1.0f / std::sqrt(float(K)), head.mask, head.mask_stride);
    multiply({scores, beams, width, head.count, head.values, rounded(K), PANEL, nullptr, out, K, out_stride, false});
}

// qkv (W,3*H*K) of row b -> heads (W,H*K); the new keys and values are appended to the cache
void self_attention(const Decoder& decoder, const Cache& cache, const Step& step, int64_t layer, int64_t b, float* qkv,
                    float* scores, float* heads) {
    const int64_t H = decoder.heads, K = decoder.head_dim, W = step.beams, wide = rounded(K), C = cache.capacity;
    const int64_t count = cache.length + W;
    for (int64_t h = 0; h < H; h++) {
        const int64_t index = (layer * cache.rows + b) * H + h;
        float *keys = cache.keys + index * K * C, *values = cache.values + index * C * wide;
        for (int64_t w = 0; w < W; w++) {
            float* q = qkv + w * 3 * H * K + h * K;
            float *key = q + H * K, *value = key + H * K;
            if (step.cos) rotate(q, K, step), rotate(key, K, step);
            for (int64_t k = 0; k < K; k++) keys[k * C + cache.length + w] = key[k];
            std::copy(value, value + K, values + (cache.length + w) * wide);
        }
        const uint8_t* mask = step.mask ? step.mask + b * W * count : nullptr;
        attend(qkv + h * K, 3 * H * K, W, K, {keys, values, mask, count, C, count}, scores, heads + h * K, H * K);
    }
}

// queries (W,H*K) of row b -> heads (W,H*K)
void cross_attention(const Decoder& decoder, const Cache& cache, const Step& step, int64_t layer, int64_t b,
                     const float* queries, float* scores, float* heads) {
    const int64_t H = decoder.heads, K = decoder.head_dim, S = cache.memory_capacity;
    const uint8_t* mask = cache.memory_mask ? cache.memory_mask + b * cache.memory : nullptr;
    for (int64_t h = 0; h < H; h++) {
        const int64_t index = (layer * cache.rows + b) * H + h;
        const Head head = {cache.memory_keys + index * K * S, cache.memory_values + index * S * rounded(K), mask, 0, S,
                           cache.memory};
        attend(queries + h * K, H * K, step.beams, K, head, scores, heads + h * K, H * K);
    }
}

}  // namespace

// Computes the logits of rows first ... last - 1 of the batch and appends their keys and values to the cache.
extern "C" void advance(const Decoder* decoder, const Cache* cache, const Step* step, int64_t first, int64_t last) {
    const int64_t D = decoder->dim, W = step->beams, M = (last - first) * W, inner = decoder->heads * decoder->head_dim;
    const int64_t units = decoder->hidden * (decoder->gated ? 2 : 1);
    std::vector<float> normed(M * D), wide(M * std::max(3 * inner, units)), heads(M * inner);
    std::vector<float> scores(W * rounded(std::max(cache->length + W, cache->memory)));
    float* x = step->x + first * W * D;
    // x + branch(norm(x)) with pre-norm, else norm(x + branch(x)); a branch adds its result to x
    auto residual = [&](const Norm& norm, auto branch) {
        if (decoder->pre_norm) normalize(x, M, D, norm, normed.data());
        branch(decoder->pre_norm ? normed.data() : x);
        if (!decoder->pre_norm) normalize(x, M, D, norm, x);
    };
    for (int64_t i = 0; i < decoder->depth; i++) {
        const Layer& layer = decoder->layers[i];
        residual(layer.norm1, [&](const float* input) {
            linear(input, M, layer.qkv, wide.data());
            for (int64_t b = 0; b < last - first; b++)
                self_attention(*decoder, *cache, *step, i, first + b, wide.data() + b * W * 3 * inner, scores.data(),
                               heads.data() + b * W * inner);
            linear(heads.data(), M, layer.proj, x, true);
        });
        residual(layer.cross_norm, [&](const float* input) {
            linear(input, M, layer.q, wide.data());
            for (int64_t b = 0; b < last - first; b++)
                cross_attention(*decoder, *cache, *step, i, first + b, wide.data() + b * W * inner, scores.data(),
                                heads.data() + b * W * inner);
            linear(heads.data(), M, layer.cross_proj, x, true);
        });
        residual(layer.norm2, [&](const float* input) {
            linear(input, M, layer.fc1, wide.data());
            activate_all(wide.data(), M, *decoder);
            linear(wide.data(), M, layer.fc2, x, true);
        });
    }
    if (decoder->norm.weight) normalize(x, M, D, decoder->norm, x);
    linear(x, M, decoder->head, step->logits + first * W * decoder->head.out);
}
