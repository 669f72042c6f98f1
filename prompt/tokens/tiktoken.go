package tokens

func loadTiktokenDir(dir string) (*Tokenizer, error) {
	return nil, unsupported("tiktoken", "%s", dir)
}
