//go:build !cgo

package semantic

const noCgo = "this program was built without cgo; build it with CGO_ENABLED=1, a C compiler, " +
	"and CGO_CFLAGS and CGO_LDFLAGS that point to libsemantic"

func unsupported() error { return newError(ErrUnsupported, noCgo) }

func nativeVersion() string { return "" }

func nativeInit(Options) error { return unsupported() }

func nativeCleanup(int64) error { return unsupported() }

func nativeLoad(string, LoadOptions, uint64, int64) (uint64, error) { return 0, unsupported() }

func nativeFind(string) (uint64, error) { return 0, unsupported() }

func nativeUnload(uint64, int64) error { return unsupported() }

func nativeModels() ([]ModelEntry, error) { return nil, unsupported() }

func nativeInfo(uint64) (*Info, error) { return nil, unsupported() }

func nativeClassify(uint64, []string, RunOptions, callLimits) (*Classification, error) {
	return nil, unsupported()
}

func nativeClassifyPairs(uint64, []string, []string, RunOptions, callLimits) (*Classification, error) {
	return nil, unsupported()
}

func nativeClassifyTokens(uint64, []string, RunOptions, callLimits) (*TokenClassification, error) {
	return nil, unsupported()
}

func nativeClassifyTokenPairs(uint64, []string, []string, RunOptions, callLimits) (*TokenClassification, error) {
	return nil, unsupported()
}

func nativeEmbed(uint64, []string, RunOptions, callLimits) (*Embeddings, error) {
	return nil, unsupported()
}

func nativeCountTokens(uint64, []string, RunOptions, callLimits) (*TokenCounts, error) {
	return nil, unsupported()
}

func nativeRunModels(requests []modelRequest, _ []string) []Answer {
	out := make([]Answer, len(requests))
	for i := range out {
		out[i].Err = unsupported()
	}
	return out
}

func nativeCancel(uint64) error { return unsupported() }

func nativeSetLogger(bool) error { return unsupported() }

func nativeStats() (*Stats, error) { return nil, unsupported() }
